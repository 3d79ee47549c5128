"""A small benchmark of vectorizers for tests: every kind of workload, at sizes of two and three."""

CONFIG = """
workloads:
  linear: {label: a product, kind: linear, picture: inference, options: {width: 3}, sizes: [2, 3]}
  convnet: {label: images, kind: convnet, picture: inference, options: {filters: [2, 3], hidden: 4}, sizes: [2]}
  lstm: {label: sequences, kind: lstm, picture: inference, options: {features: 2, units: 3, longest: 4}, sizes: [3]}
  convnet_gradients:
    {label: of images, kind: convnet_gradients, picture: gradients, options: {filters: [2, 2], hidden: 3}, sizes: [2]}
  lstm_gradients:
    label: of sequences
    kind: lstm_gradients
    picture: gradients
    options: {features: 2, units: 2, longest: 4}
    sizes: [3]
  lstm_jacobian: {label: J, kind: lstm_jacobian, options: {features: 2, units: 3, tokens: 4}, sizes: [2]}
  vgg_jacobian: {label: V, kind: vgg_jacobian, options: {side: 8, filters: [2, 3]}, sizes: [2]}
  schools: {label: schools, kind: density, options: {name: eight_schools, steps: 3}, sizes: [2]}
run: {}
curves:
  ours: {label: ours, method: pfor}
  by_hand: {label: hand, method: by_hand}
  theirs: {label: theirs, method: tensorflow, compiled: false}
  sequential: {label: loop, method: sequential, compiled: false}
  jax: {label: jax, method: jax}
measurement: {repetitions: 2, min_seconds: 0.001}
claims:
  faster: {says: faster, source: nobody, curve: ours, over_curve: sequential, at_least: 1.0}
output: {folder: out}
quick: {measurement.repetitions: 1}
"""
