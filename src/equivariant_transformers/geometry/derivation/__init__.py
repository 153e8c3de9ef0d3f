"""Implementation of `derive`: closed-form coordinates where they exist, curves across the orbits otherwise."""
