// SPDX-License-Identifier: GPL-2.0
/* Users: what is under way for all open files of one of them together. */
#include <linux/cred.h>
#include <linux/slab.h>

#include "adma.h"

static LIST_HEAD(adma_users);
static DEFINE_SPINLOCK(adma_users_lock);	/* of the list, and of files */

/* For a file that holds @cred. */
struct adma_user *adma_user_get(const struct cred *cred)
{
	struct adma_user *user, *new;

	new = kzalloc(sizeof(*new), GFP_KERNEL_ACCOUNT);
	if (!new)
		return NULL;
	spin_lock(&adma_users_lock);
	list_for_each_entry(user, &adma_users, list) {
		if (user->of == cred->user)
			goto out_unlock;
	}
	user = new;
	new = NULL;
	user->of = cred->user;
	list_add(&user->list, &adma_users);
out_unlock:
	user->files++;
	spin_unlock(&adma_users_lock);
	kfree(new);
	return user;
}

void adma_user_put(struct adma_user *user)
{
	spin_lock(&adma_users_lock);
	if (--user->files)
		user = NULL;
	else
		list_del(&user->list);
	spin_unlock(&adma_users_lock);
	kfree(user);
}

bool adma_user_charge(struct adma_user *user, u64 len)
{
	if (atomic64_add_return(len, &user->bytes) <= READ_ONCE(adma_max_bytes))
		return true;
	adma_user_uncharge(user, len);
	return false;
}

void adma_user_uncharge(struct adma_user *user, u64 len)
{
	atomic64_sub(len, &user->bytes);
}
