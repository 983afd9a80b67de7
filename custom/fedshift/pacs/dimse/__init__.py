"""DIMSE: C-FIND finds, C-GET or C-MOVE fetches, C-STORE stores (PS3.4 and PS3.7)."""
