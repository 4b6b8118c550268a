"""Code that several tests share: a tiny encoder, tiny bundles, and slow reference oracles."""
