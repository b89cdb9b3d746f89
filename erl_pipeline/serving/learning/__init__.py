"""Learning from the log of a served policy: batches, nights, the gate, and which checkpoint serves next."""
