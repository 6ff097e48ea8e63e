// placeholder
#include "variant.h"
