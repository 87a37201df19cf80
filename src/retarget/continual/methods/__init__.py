"""One file a method of continual learning, or a family of them."""
