"""TensorFlow: eagerly, as a graph, or compiled by XLA."""
