/* SPDX-License-Identifier: GPL-2.0 */
#ifndef ADMA_HOLD_H
#define ADMA_HOLD_H

extern unsigned int adma_align;	/* of transfers, for all channels */

int adma_channels_request(void);
void adma_channels_release(void);

#endif /* ADMA_HOLD_H */
