"""Scripts that regenerate files of the tree: samples, pictures, outputs for upgrade tests."""
