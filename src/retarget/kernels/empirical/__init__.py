"""The kernel of a finite network, from the gradients of its parameters."""
