"""What `derive` is made of: formulas where they exist, curves across the orbits where they do not."""
