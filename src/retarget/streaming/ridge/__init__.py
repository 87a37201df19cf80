"""Ridge regression from sums over features, which streams add to, merge and subtract from."""
