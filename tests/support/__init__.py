"""What tests of several packages share: fakes, small models, generated files, real processes."""
