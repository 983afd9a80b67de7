"""DICOMweb: QIDO-RS finds, WADO-RS fetches, STOW-RS stores (PS3.18)."""
