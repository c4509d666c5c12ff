"""Client plane."""
