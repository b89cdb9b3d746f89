"""What this machine can run: checks as plain functions, each giving findings that say what to do."""
