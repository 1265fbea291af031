"""The ablation of Cao et al. 2021 (Table 2): noise on the gradient of the generator's weights."""
