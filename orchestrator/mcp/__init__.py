"""The program over the Model Context Protocol: the same operations, documents, errors and confirmation rules."""
