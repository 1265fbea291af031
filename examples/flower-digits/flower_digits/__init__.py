"""Ten owners of digits teach one generator: fedsink as an app of Flower."""
