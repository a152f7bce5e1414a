"""Loss, optimizer, gradients, pipeline and tensor parallelism."""
