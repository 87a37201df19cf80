"""What tests share: problems, made data sets, oracles, damaged files."""
