"""What a served policy leaves in a store: its traffic, which checkpoint each alias means, and who is who."""
