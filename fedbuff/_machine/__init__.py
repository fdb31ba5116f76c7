"""This build and this computer: what was compiled, where its headers are, how fast it is."""
