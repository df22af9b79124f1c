"""CPU kernels that replace slow operations of the libraries."""
