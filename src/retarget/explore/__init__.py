"""`retarget explore`: a page on this machine where points, rates and orders can be moved."""
