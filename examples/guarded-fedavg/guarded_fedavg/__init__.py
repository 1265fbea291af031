"""FedAvg on MNIST, with training by Opacus at the clients under fedsink's guard."""
