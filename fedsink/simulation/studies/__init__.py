"""Studies: experiments of several runs, and what is made of them; one file each."""
