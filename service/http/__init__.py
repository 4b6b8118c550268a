"""The HTTP interface: routes, wire types, access, middleware and error documents."""
