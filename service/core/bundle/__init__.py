"""The bundle on disk: manifest, arrays, texts and label details."""
