"""Documents, schemas, results."""
