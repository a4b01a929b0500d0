"""The folder that ``narrows run`` puts first on PYTHONPATH. Nothing but ``sitecustomize`` may live here."""
