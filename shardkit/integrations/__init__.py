"""Adapters that bring kits into web frameworks: Django, Starlette and FastAPI, Flask."""
