"""Records in the forms that other programs read, one module a form."""
