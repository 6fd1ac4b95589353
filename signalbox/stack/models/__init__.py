"""Several models behind one router: which are loaded, and the processes of each."""
