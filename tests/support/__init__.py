"""What several tests share: a tiny encoder, tiny bundles, and slow but obvious oracles."""
