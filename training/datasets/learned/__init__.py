"""What a service has learned, as a data set: the bundle's rows and its label log together."""
