"""One round: federated algorithms as TFF processes."""
