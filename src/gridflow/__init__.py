"""gridflow: TensorFlow and Keras 3 on Spark clusters and beyond."""
