"""The stages that write the reflection memory."""
