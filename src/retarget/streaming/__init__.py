"""The same mathematics, fed portion by portion."""
