"""How docs/ becomes a website: see docs/make_site.py."""
