/* config.h - what the command line and the environment say. */
#ifndef SANDKEEPER_CONFIG_H
#define SANDKEEPER_CONFIG_H

#define CONFIG_VERSION "0.1.0"

#endif
