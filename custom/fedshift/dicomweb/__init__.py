"""Images from a PACS, and results to it, by DICOMweb: QIDO-RS finds, WADO-RS fetches, STOW-RS stores (DICOM PS3.18)."""
