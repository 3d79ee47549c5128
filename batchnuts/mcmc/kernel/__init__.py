"""One chain: the Hamiltonian system, NUTS and WALNUTS, the step size, and the program that runs them."""
