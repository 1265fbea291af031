"""GS-WGAN (Chen, Orekondy, Fritz 2020) with all critics asked, and their sum noised once."""
