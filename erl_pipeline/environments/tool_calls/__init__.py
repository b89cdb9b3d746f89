"""How chat templates write tool calls, and how calls are found in what a policy says. A policy's form is the
one that gives back what its own template writes: nothing is configured."""
