"""The bundle, the folder that is served: manifest, arrays, texts, label details, IRENE's files."""
