"""Other evidence that engineers already have, each kind to typed records, strict about what was not understood."""
