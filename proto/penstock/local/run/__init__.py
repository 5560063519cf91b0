"""`penstock run`: a whole pipeline on this machine under one supervisor."""
