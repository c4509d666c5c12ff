"""IP to city: which city an address is in, over one server or many, and in this process."""
