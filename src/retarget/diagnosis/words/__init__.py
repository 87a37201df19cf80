"""The words that findings and reports are made of."""
